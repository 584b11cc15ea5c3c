# SPDX-License-Identifier: Apache-2.0
"""Layout p16x4: quantized rows to the panels that kernels read, and back (kernels/FORMAT.md, section WGTS).

Everything works on whole panels of 16 rows, so that a matrix can be packed in pieces of any multiple of 16 rows.
"""

from __future__ import annotations

import numpy as np

from nanobuild.formats import BLOCK, I8, TABLE4, U8, Format, Quantized

PANEL = 16
_RUNTIME_IDS = {(4, 16): 1, (4, 32): 2, (8, 32): 3}


def format_id(fmt: Format) -> int:
    """The number of a format in the model file; groups above 32 share the kernel of 32."""
    return _RUNTIME_IDS[fmt.bits, min(fmt.group, BLOCK)]


def panels(rows: int) -> int:
    """Panels of a matrix with `rows` rows."""
    return -(-rows // PANEL)


def code_offset(fmt: Format, cols: int) -> int:
    """Bytes from the start of a panel to its codes: row scales, group scales, padding to 64."""
    return align(2 * PANEL + PANEL * fmt.groups(cols), 64)


def panel_stride(fmt: Format, cols: int) -> int:
    """Bytes of one panel."""
    blocks = -(-cols // BLOCK)
    return code_offset(fmt, cols) + blocks * BLOCK * PANEL * fmt.bits // 8


def matrix_bytes(fmt: Format, rows: int, cols: int) -> int:
    """Bytes of a packed matrix."""
    return panels(rows) * panel_stride(fmt, cols)


def align(n: int, to: int) -> int:
    """`n` rounded up to a multiple of `to`."""
    return -(-n // to) * to


def pack(q: Quantized) -> U8:
    """(panels, panel_stride) bytes of a matrix or of a run of its rows that starts at a multiple of 16."""
    rows, cols = q.codes.shape
    count, blocks = panels(rows), -(-cols // BLOCK)
    out = np.zeros((count, panel_stride(q.format, cols)), np.uint8)
    scales = np.zeros((count * PANEL, q.scales.shape[1]), np.uint8)
    scales[:rows] = q.scales
    factors = np.zeros(count * PANEL, np.float16)
    factors[:rows] = q.row_scales
    out[:, : 2 * PANEL] = factors.astype("<f2").view(np.uint8).reshape(count, 2 * PANEL)
    head = PANEL * q.scales.shape[1]
    out[:, 2 * PANEL : 2 * PANEL + head] = scales.reshape(count, PANEL, -1).transpose(0, 2, 1).reshape(count, head)
    codes = np.zeros((count * PANEL, blocks * BLOCK), np.uint8)
    codes[:rows, :cols] = q.codes
    quads = codes.reshape(count, PANEL, blocks, BLOCK // 4, 4).transpose(0, 2, 3, 1, 4)  # panel, block, j, row, i
    if q.format.bits == 4:
        quads = quads[:, :, :4] | (quads[:, :, 4:] << 4)
    out[:, code_offset(q.format, cols) :] = quads.reshape(count, -1)
    return out


def unpack(data: U8, fmt: Format, rows: int, cols: int, row_exp: int) -> Quantized:
    """The inverse of pack(); data is (panels, panel_stride) or flat."""
    count, blocks = panels(rows), -(-cols // BLOCK)
    table = data.reshape(count, panel_stride(fmt, cols))
    factors = np.ascontiguousarray(table[:, : 2 * PANEL]).view("<f2").reshape(-1)[:rows].astype(np.float16)
    head = PANEL * fmt.groups(cols)
    scales = table[:, 2 * PANEL : 2 * PANEL + head].reshape(count, -1, PANEL).transpose(0, 2, 1)
    body = table[:, code_offset(fmt, cols) :]
    if fmt.bits == 4:
        nibbles = body.reshape(count, blocks, 4, PANEL, 4)
        quads = np.concatenate([nibbles & 15, nibbles >> 4], axis=2)
    else:
        quads = body.reshape(count, blocks, BLOCK // 4, PANEL, 4)
    codes = quads.transpose(0, 3, 1, 2, 4).reshape(count * PANEL, blocks * BLOCK)
    return Quantized(
        format=fmt,
        codes=np.ascontiguousarray(codes[:rows, :cols]),
        scales=np.ascontiguousarray(scales.reshape(count * PANEL, -1)[:rows]),
        row_scales=factors,
        row_exp=row_exp,
    )


def nibbles(codes: U8) -> U8:
    """(rows, cols) 4-bit codes to the portable file's (rows, ceil(cols / 2)): even columns in the low nibble."""
    rows, cols = codes.shape
    padded = np.zeros((rows, cols + cols % 2), np.uint8)
    padded[:, :cols] = codes
    out: U8 = padded[:, 0::2] | (padded[:, 1::2] << 4)
    return out


def from_nibbles(data: U8, cols: int) -> U8:
    """The inverse of nibbles()."""
    out = np.empty((data.shape[0], data.shape[1] * 2), np.uint8)
    out[:, 0::2] = data & 15
    out[:, 1::2] = data >> 4
    return np.ascontiguousarray(out[:, :cols])


def table_bytes(fmt: Format) -> I8:
    """The 16 bytes of a tensor record that give each code's value; zeros at 8 bits."""
    return np.array(TABLE4 if fmt.bits == 4 else (0,) * 16, np.int8)
