"""What all tests share."""

from hypothesis import HealthCheck, settings

# A busy machine makes examples slow; that is no failure.
settings.register_profile("poros", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("poros")
