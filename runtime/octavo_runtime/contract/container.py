"""What a serving container and its pod template agree on; plain constants, so that `octavo drain` starts at once."""

HTTP_PORT = 8000
"""Port of the OpenAI-compatible API, of probes and of metrics."""

TERMINATION_LOG = "/dev/termination-log"
"""Where a container leaves its last word; the kubelet copies at most 4 KiB of it into the pod's status."""

TERMINATION_LIMIT_BYTES = 4096

DRAIN_ANNOUNCE_SECONDS = 5
"""After a drain begins, new connections are served this long (with `Connection: close`) while endpoints propagate."""

DRAIN_SECONDS = 120
"""How long a drain waits for open requests, unless told otherwise."""

DRAIN_GRACE_MARGIN_SECONDS = 15
"""What terminationGracePeriodSeconds adds to the announce and drain times, so that SIGKILL never comes first."""
