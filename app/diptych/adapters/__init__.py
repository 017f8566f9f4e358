"""Each package connects to one external system and implements its ports."""
