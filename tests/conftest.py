# SPDX-License-Identifier: Apache-2.0
"""Makes tests/ importable from every test folder (`import tiny`)."""
