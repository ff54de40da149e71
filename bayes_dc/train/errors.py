"""Errors that a user can put right; the message names the file or setting and says what to do."""


class TrainingError(ValueError):
    """Training cannot start or go on."""


class CheckpointError(ValueError):
    """A checkpoint cannot be read, written or used."""
