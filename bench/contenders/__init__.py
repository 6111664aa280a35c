"""The contenders; each module's ``prepare(job)`` loads the source and returns the call that is timed."""
