"""Repairs speculative *sampling* on the CPU in vLLM 0.32.0. vLLM loads it as a general plugin at start.

Two faults, both in the rejection sampler's CPU fallback:

1. Temperature, top-p and top-k are spread from one value per request to one per drafted token. The fallback
   writes them into an integer copy of its output and drops that copy, so drafted tokens are sampled with
   uninitialised memory: garbage text and almost no acceptance at any temperature above 0.
2. Top-k on a step in which no request drafted anything takes the maximum of an empty tensor, which ends the
   engine.

Greedy requests (temperature 0) pass through neither, so their text is the same with and without it.
"""


def register():
    """Replace the two functions inside vLLM's rejection sampler. Called once in every engine process."""
    import torch
    from vllm.v1.sample import rejection_sampler

    def expand_batch_to_tokens(x, cu_num_tokens, num_tokens, replace_from=0, replace_to=0):
        """One value per request -> one per drafted token. ``cu_num_tokens`` counts them cumulatively."""
        per_request = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        if replace_from != replace_to:
            x = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
        return x.repeat_interleave(per_request.to(torch.int64), output_size=num_tokens)

    filter_logits = rejection_sampler.apply_top_k_top_p

    def apply_top_k_top_p(logits, k, p):
        """vLLM's own filter, but a step without drafts has nothing to filter."""
        return logits if logits.shape[0] == 0 else filter_logits(logits, k, p)

    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    rejection_sampler.apply_top_k_top_p = apply_top_k_top_p
