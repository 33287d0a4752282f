"""Samples of given lengths: random tokens from 1 to 60, the first half not learned."""

import random
from array import array

from poros.data.samples import IGNORED, Sample


def make_samples(lengths, seed=0):
    rng = random.Random(seed)
    samples = []
    for sample_id, length in enumerate(lengths):
        tokens = [rng.randint(1, 60) for _ in range(length)]
        masked = max(1, length // 2)
        labels = [IGNORED] * masked + tokens[masked:]
        samples.append(
            Sample(sample_id, array("i", tokens), array("i", labels), line=sample_id + 1)
        )
    return samples
