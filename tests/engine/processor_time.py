"""How long commands take, told by the processor: the machine may be busy with other tests."""

import resource


def processor_s() -> float:
    """Seconds that the children which have ended spent on the processor."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
