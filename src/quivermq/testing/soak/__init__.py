"""Strikes real brokers with a random mix of faults, for minutes or hours, and publishes the result.

    python -m quivermq.testing.soak --minutes 30 --nodes 5 --seed 7 --folder run

`torture` runs brokers, users and faults; users are processes (`user_process`) that write journals.
`judge` is a process too: it knows only the journals and the logs that were on the disks at the end.
`report` makes a text of the `record`. The faults come from a seed; how processes interleave is up
to the machine.
"""
