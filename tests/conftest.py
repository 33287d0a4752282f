"""What all tests share."""

import signal

from hypothesis import HealthCheck, settings

# A shell that starts the tests in the background, or nohup, would hand its ignored signals down to
# the runs that the tests send signals to.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGTERM, signal.SIG_DFL)

# A busy machine makes examples slow; that is no failure.
settings.register_profile("poros", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("poros")
