"""The checks of a node: a file for each device or subject, the table of them all, and who runs them. (pure)"""
