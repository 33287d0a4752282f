"""Tokenizers made on the spot: one token a byte, a few special ones, and a chat template."""

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Earlier answers lose the header that the last one gets, as Qwen3's template does it.
THINKING = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}"
    "{{ message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# No token ends a turn, and the beginning is marked.
BARE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ message['role'] + ': ' + message['content'] + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)

SPECIAL = ("<|bos|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")


def tiny_tokenizer(
    template=CHATML, *, pad="<|pad|>", eos="<|im_end|>", bos="<|bos|>", add_bos=False
):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=bos, eos_token=eos, pad_token=pad
    )
    fast.add_tokens(["\n\n"])  # as Gemma's tokenizer has them
    fast.chat_template = template
    return fast


def learned(tokenizer, sample):
    """The text of the tokens that are learned."""
    pairs = zip(sample.input_ids, sample.labels, strict=True)
    return tokenizer.decode([token for token, label in pairs if label == token])


def whole(tokenizer, sample):
    return tokenizer.decode(list(sample.input_ids))
