"""Ten ordinary scripts without any setting of ftrun, from submission to their end: python -m tests.first_days (I/O)"""
