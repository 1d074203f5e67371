"""What asks the system: processes, their files, allocators and cgroup. ``counters`` makes samples of the answers.

Nothing here judges. Linux only: every answer comes from /proc, /sys or a system call that other systems do not have.
"""
