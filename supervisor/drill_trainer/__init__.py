"""The small training that drills hurt. It runs inside jobs: standard library only, Python 3.9. (pure)"""
