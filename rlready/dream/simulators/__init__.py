"""What answers where code does not know: simulators, by one string each."""
