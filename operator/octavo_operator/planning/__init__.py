"""Pure: from model facts, hardware and wishes to a plan with its reasons, or to the reason why there is none."""
