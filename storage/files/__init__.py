"""Files as the store needs them: mapped, allocated ahead, replaced safely. Nobody else calls the system."""
