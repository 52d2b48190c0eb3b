"""Errors that a process cannot send to another one as they are."""


class SensorError(Exception):
    """Cannot be put together again from its text."""

    def __init__(self, sensor, code):
        super().__init__(f"sensor {sensor} says {code}")


class OpenError(Exception):
    """Cannot be pickled at all."""

    def __init__(self, text):
        super().__init__(text)
        self.retry = lambda: None
