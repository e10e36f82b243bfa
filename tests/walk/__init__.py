"""Counts what one fault and one submission walk through: functions, files, changes of file (`make walk`)."""
