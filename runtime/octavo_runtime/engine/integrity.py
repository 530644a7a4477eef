"""What a KV integrity violation leads to; the mode is the contract's, since the operator passes it."""

from __future__ import annotations

from octavo_runtime.contract.integrity import IntegrityMode as IntegrityMode
