"""What samples mean: growth, what is held and by whom, risks, repairs, and the verdict over them.

Pure: nothing here asks the system anything, so that a trace saved on one machine is judged alike on every other.
"""
