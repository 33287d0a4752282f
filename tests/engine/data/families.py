"""Chat templates that behave as each family's does, in words of our own; no text is theirs.

What is told apart: who marks the beginning, who ends an answer and how, what becomes of thinking in
earlier turns, of system turns, tools and their calls.
"""

from dataclasses import dataclass

from tests.engine.data.tiny_tokenizers import tiny_tokenizer

_CHATML_ASK = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
_CALLS = (
    "{% for c in m.tool_calls or [] %}"
    "{{ '<call>' ~ c.function.name ~ ' ' ~ (c.function.arguments|tojson) ~ '</call>' }}{% endfor %}"
)
_TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\nOffer: ' ~ (tools|tojson) ~ '<|im_end|>\n' }}{% endif %}"
)
_OTHERS = "{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}"

# A default system turn, calls, no thinking.
QWEN2 = (
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe good.<|im_end|>\n' }}"
    "{% endif %}" + _TOOLS + "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '<|im_start|>assistant\n' ~ m.content }}" + _CALLS + "{{ '<|im_end|>\n' }}"
    "{% else %}" + _OTHERS + "{% endif %}{% endfor %}" + _CHATML_ASK
)
_THINKING_TURN = (
    "{% set ns = namespace(asked=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
    "{% if loop.index0 > ns.asked %}"
    "{{ '<think>\n' ~ (m.reasoning_content or '') ~ '\n</think>\n\n' }}{% endif %}{{ m.content }}"
)
# Thinking is shown after the last question only.
QWEN3 = (
    _TOOLS + _THINKING_TURN + _CALLS + "{{ '<|im_end|>\n' }}"
    "{% else %}" + _OTHERS + "{% endif %}{% endfor %}" + _CHATML_ASK
)
# The same, and the prompt opens the thinking.
QWEN3_5 = QWEN3.replace(_CHATML_ASK, _CHATML_ASK.replace("assistant\n", "assistant\n<think>\n"))
# No system role, strict turns, a beginning of its own.
GEMMA2 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate\nuser and assistant') }}{% endif %}"
    "{{ '<turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\n' }}"
    "{{ m.content|trim ~ '<end>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<turn>model\n' }}{% endif %}"
)
# The system turn goes into the user's.
GEMMA3 = (
    "{{ bos_token }}{% set rest = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% set head = messages[0].content ~ '\n\n' if messages[0].role == 'system' else '' %}"
    "{% for m in rest %}{{ '<turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\n' }}"
    "{{ (head if loop.first else '') ~ m.content|trim ~ '<end>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<turn>model\n' }}{% endif %}"
)
# A call ends with the token that the result begins with; prompts hold an empty thought; thinking is
# shown before calls only.
GEMMA4 = (
    "{{ bos_token }}{% if tools %}{{ '<turn>system\n' ~ (tools|tojson) ~ '<end>\n' }}{% endif %}"
    "{% set ns = namespace(open=false) %}{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ m.content ~ '<done>' }}{% set ns.open = true %}{% else %}{% if not ns.open %}"
    "{{ '<turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\n' }}{% endif %}"
    "{% set ns.open = false %}{% if m.tool_calls %}"
    "{% if m.reasoning %}{{ '<think>' ~ m.reasoning ~ '</think>' }}{% endif %}" + _CALLS +
    "{{ m.content ~ '<result>' }}{% else %}{{ m.content|trim ~ '<end>\n' }}{% endif %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt and not ns.open %}"
    "{{ '<turn>model\n<think></think>' }}{% endif %}"
)  # fmt: skip
# A beginning in the template, and one by the tokenizer; a call leaves no room for words.
LLAMA3 = (
    "{{ bos_token }}{% if tools %}{{ '<head>system</head>' ~ (tools|tojson) ~ '<eot>' }}{% endif %}"
    "{% for m in messages %}{{ '<head>' ~ m.role ~ '</head>' }}"
    "{% if m.tool_calls %}{% if m.tool_calls|length > 1 %}{{ raise_exception('one call only') }}"
    "{% endif %}" + _CALLS + "{{ '<eot>' }}{% else %}{{ m.content|trim ~ '<eot>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<head>assistant</head>' }}{% endif %}"
)
# The end of the text follows the end of the turn, and unknown roles are passed over.
PHI3 = (
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}"
    "{{ '<|' ~ m.role ~ '|>\n' ~ m.content ~ '<|end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
PHI4 = (
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '<|im_sep|>' ~ m.content ~ '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
)
# The system turn stands before the last question, as long as nothing follows; so do the tools.
MISTRAL = (
    "{{ bos_token }}{% set sys = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% set asked = messages|selectattr('role', 'equalto', 'user')|list %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% if tools and m == asked[-1] %}"
    "{{ '[TOOLS]' ~ (tools|tojson) ~ '[/TOOLS]' }}{% endif %}"
    "{{ '[INST]' ~ (sys ~ '\n\n' if sys and loop.last else '') ~ m.content ~ '[/INST]' }}"
    "{% elif m.role == 'tool' %}{{ '[RESULT]' ~ m.content ~ '[/RESULT]' }}"
    "{% elif m.tool_calls %}{% for c in m.tool_calls %}{% if (c.id or '')|length != 9 %}"
    "{{ raise_exception('ids of calls have length 9') }}{% endif %}{% endfor %}"
    "{{ '[CALLS]' ~ (m.tool_calls|map(attribute='function')|list|tojson) ~ eos_token }}"
    "{% elif m.role == 'assistant' %}{{ m.content ~ eos_token }}{% endif %}{% endfor %}"
)
# Thinking is a part of the content.
MINISTRAL3 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{{ '[INST]' ~ m.content ~ '[/INST]' }}{% elif m.role == 'system' %}"
    "{{ '[SYS]' ~ m.content ~ '[/SYS]' }}{% else %}{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content %}{{ '[THINK]' ~ part.thinking ~ '[/THINK]' "
    "if part.type == 'thinking' else part.text }}{% endfor %}{% endif %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
)
# Nothing ends a turn but the next one's header.
GLM4 = (
    "{{ '<gmask>' }}{% if tools %}{{ '<|system|>' ~ (tools|tojson) }}{% endif %}"
    "{% for m in messages %}{{ '<|' ~ ('observation' if m.role == 'tool' else m.role) ~ '|>' }}"
    "{{ '\n' ~ m.content }}" + _CALLS + "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# Answers have a bracket of their own; prompts hold an empty thought.
COHERE2 = (
    "{{ bos_token }}{% for m in messages %}{{ '<turn><' ~ m.role ~ '>' }}"
    "{{ '<say>' ~ m.content ~ '</say>' if m.role == 'assistant' else m.content }}{{ '<end>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<turn><assistant><think></think>' }}{% endif %}"
)
# Arguments have to be text; the thought is cut out of the content; prompts open a thought.
R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|assistant|>' }}"
    "{% for c in m.tool_calls or [] %}"
    "{{ '<call>' + c.type + ' ' + c.function.name + '\n' + c.function.arguments + '</call>' }}"
    "{% endfor %}{{ m.content.split('</think>')[-1] ~ eos_token }}"
    "{% else %}{{ '<|' ~ m.role ~ '|>' ~ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|><think>\n' }}{% endif %}"
)
# Thinking is the user's to write into the content; tools have another name.
SMOLLM3 = (
    _TOOLS.replace("tools", "xml_tools")
    + "{% for m in messages %}"
    + _OTHERS
    + "{% endfor %}"
    + _CHATML_ASK
)

MARKS = (
    *("<turn>", "<end>", "<result>", "<done>", "<think>", "</think>", "<call>", "</call>"),
    *("<head>", "</head>", "<eot>", "<say>", "</say>", "<user>", "<assistant>", "<system>"),
    *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|end|>", "<|im_sep|>"),
    *("[INST]", "[/INST]", "[THINK]", "[/THINK]", "[CALLS]", "[RESULT]", "[/RESULT]"),
    *("</s>", "<gmask>"),
)


@dataclass(frozen=True)
class Family:
    template: str
    eos: str
    adds_bos: bool = False

    def tokenizer(self):
        tokenizer = tiny_tokenizer(self.template, add_bos=self.adds_bos)
        tokenizer.add_tokens(list(MARKS), special_tokens=True)
        tokenizer.eos_token = self.eos
        return tokenizer


FAMILIES = {
    "qwen2": Family(QWEN2, "<|im_end|>"),
    "qwen3": Family(QWEN3, "<|im_end|>"),
    "qwen3_5": Family(QWEN3_5, "<|im_end|>"),
    "gemma2": Family(GEMMA2, "<|endoftext|>", adds_bos=True),
    "gemma3": Family(GEMMA3, "<end>", adds_bos=True),
    "gemma4": Family(GEMMA4, "<|endoftext|>", adds_bos=True),
    "llama": Family(LLAMA3, "<eot>", adds_bos=True),
    "phi3": Family(PHI3, "<|endoftext|>"),
    "phi4": Family(PHI4, "<|im_end|>"),
    "mistral": Family(MISTRAL, "</s>", adds_bos=True),
    "ministral3": Family(MINISTRAL3, "</s>", adds_bos=True),
    "glm4": Family(GLM4, "<|endoftext|>"),
    "cohere2": Family(COHERE2, "<end>", adds_bos=True),
    "deepseek_r1": Family(R1, "</s>", adds_bos=True),
    "smollm3": Family(SMOLLM3, "<|im_end|>"),
}
