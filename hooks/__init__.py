"""What runs on the nodes: standard library only, Python 3.9. (pure)"""
