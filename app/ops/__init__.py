"""Operations: the two vLLM processes, their profiles, what the endpoints are doing."""
