"""`poros export`: an adapter merged into its base, as an ordinary model folder."""

from poros.loading.lean_bitsandbytes import import_bitsandbytes

# Before peft and transformers, which import it as it is.
import_bitsandbytes()
