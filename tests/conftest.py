"""For all tests: a shell that starts us in the background has SIGINT ignored, and our children would inherit that."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
