"""Properties run without a deadline: a busy machine is slow, not wrong."""

from hypothesis import settings

settings.register_profile("core", deadline=None)
settings.load_profile("core")
