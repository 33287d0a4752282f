"""The words that the screens use, each explained in one sentence: what `?` shows."""

from __future__ import annotations

TERMS: dict[str, str] = {
    "adapter": "The small set of weights that training makes; the model itself stays as it is.",
    "block": "One layer of the model; blocks travel through the card one after the other.",
    "block map": "One sign a block: which stay on the card, arrive, compute, or wait in RAM.",
    "certified": "This family of models was shown to give the same bits streamed as not streamed.",
    "checkpoint": "A saved moment of the training, from which it can go on.",
    "epoch": "Once through all of the training data.",
    "evaluation": "The loss on rows that are not trained on: it tells learning from memorising.",
    "export": "Adapter and model put together into one folder that other programs read.",
    "gradient norm": "How large a step's correction is; a sudden jump means unstable training.",
    "host RAM": "The computer's own memory, where blocks wait that are not on the card.",
    "learning rate": "How far each step moves the adapter; too high and the loss climbs.",
    "link": "The way between RAM and card; its GB/s limit how fast blocks can stream.",
    "loss": "How surprised the model is by the right answers; lower is better.",
    "max_seq_length": "The most tokens of a sample that are used; longer ones are cut.",
    "NF4": "Four bits for each weight of the base model: a quarter of the memory of 16 bits.",
    "out of memory": "The card has too little room; Poros then makes a smaller plan and goes on.",
    "peak": "The most memory that was in use at any moment so far.",
    "rank": "How large the adapter is: 16 suits most purposes.",
    "resident": "Stays on the card for the whole run instead of travelling.",
    "run": "One training with its folder: config, events, checkpoints and adapter.",
    "sample": "An answer of the model to a fixed prompt, before, during and after the training.",
    "seed": "The number that fixes all chance in a run; the same seed gives the same run.",
    "step": "One correction of the adapter, after one batch of samples.",
    "token": "A piece of a word: what models read and write.",
    "tokens/s": "How much text the training gets through each second.",
    "VRAM": "The graphics card's own memory.",
    "VRAM budget": "The most of the card's memory that the run may take.",
}


def explained(word: str) -> str:
    """The sentence about a word; empty: it is none of ours."""
    return TERMS.get(word) or {key.lower(): text for key, text in TERMS.items()}.get(
        word.lower(), ""
    )
