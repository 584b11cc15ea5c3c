# SPDX-License-Identifier: Apache-2.0
"""Makes tests/ importable from every test folder (`import tiny`), and children interruptible.

A shell starts its background jobs with SIGINT ignored, and programs that tests start would inherit that.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
