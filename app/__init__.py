"""Specrace: race plain vLLM against speculative decoding, live."""

__version__ = "0.1.0"
