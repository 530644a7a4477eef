"""Pure: from what was decided and what is running to the conditions and the status document."""
