"""Makes a model to try fine-tuning with, in a second and without a network: real in kind, random, and tiny.

    python examples/tiny_model.py tiny-bert          # an encoder, for rows of text and label
    python examples/tiny_model.py tiny-llama llama   # a causal model, for prompts, messages and plain text

Its tokenizer has one token per byte.
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, BEGIN, END = range(3)


def byte_tokenizer():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<pad>", "<s>", "</s>", *letters])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BEGIN)])
    marks = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **marks)


def llama(folder, hidden=32, layers=1):
    config = LlamaConfig(
        vocab_size=len(byte_tokenizer()),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=PAD,
        bos_token_id=BEGIN,
        eos_token_id=END,
    )
    return save(LlamaForCausalLM, config, folder)


def bert(folder, hidden=64, layers=1):
    config = BertConfig(
        vocab_size=len(byte_tokenizer()),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=256,
        pad_token_id=PAD,
    )
    return save(BertModel, config, folder)


def save(kind, config, folder):
    torch.manual_seed(0)
    kind(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


if __name__ == "__main__":
    made = {"bert": bert, "llama": llama}[sys.argv[2] if len(sys.argv) > 2 else "bert"](sys.argv[1])
    print(f"{made}: try it with allpass finetune {made} examples/tickets.csv --method full")
