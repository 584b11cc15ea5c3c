# SPDX-License-Identifier: Apache-2.0
"""What each command does and prints: one module a command, each with a main(ui, ...) that cli.py calls."""
