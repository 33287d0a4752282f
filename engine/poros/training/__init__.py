"""One optimizer step, the loop around it, and what it saves."""

import poros.loading  # noqa: F401  bitsandbytes comes before peft imports it
