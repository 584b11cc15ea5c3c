# SPDX-License-Identifier: Apache-2.0
"""Data files that travel with the package: the list of fetchable models and the default evaluation text."""
