"""Consumer groups: their members, settings, offsets, locks and progress."""
