"""EndTxn: commit or abort.

Version notes: 2 tells a fenced producer from other errors; from 5 on every transaction has an epoch of its
own, and the answer tells the one of the next (KIP-890), or a new producer id when the epochs are used up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.core.api.registry import handles
from gapless.core.contract import Request
from gapless.core.producer_id_block import take_producer_id
from gapless.core.shard import CoordinatorError
from gapless.core.transactions import rules
from gapless.core.transactions.replies import commit_error, fenced_error
from gapless.core.transactions.state import TransactionsState, find_transactions
from gapless.core.transactions.transaction import EACH_WITH_ITS_EPOCH
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import EndTxnRequest, EndTxnResponse

if TYPE_CHECKING:
    from gapless.core.node import Node

WITH_ITS_EPOCH_FROM = 5


@handles(ApiKey.END_TXN, 0, 5)
def end_txn(node: Node, request: Request) -> Any | None:
    """Answered once the decision is committed; the markers follow."""
    if not request.body.transactional_id:
        return _ended(ErrorCode.INVALID_REQUEST)
    _End(node, request).decide(None)
    return None


class _End:
    """One end of a transaction."""

    def __init__(self, node: Node, request: Request) -> None:
        self._node = node
        self._request = request
        self._body: EndTxnRequest = request.body
        self._version = EACH_WITH_ITS_EPOCH if request.header.api_version >= WITH_ITS_EPOCH_FROM else 0

    def decide(self, new_id: int | None) -> None:
        """Decide on what is known now; comes again with a fresh producer id if one is needed."""
        transactional_id = self._body.transactional_id
        try:
            transactions = find_transactions(self._node, transactional_id)
            current = transactions.transactions.get(transactional_id)
            producer = self._body.producer_id, self._body.producer_epoch
            state = rules.end(current, producer, self._body.committed, self._version)
            if current is None:
                raise CoordinatorError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            if state is None:
                self._answer(transactions, current.producer)
                return
            if new_id is None and rules.end_needs_id(current, self._version):
                take_producer_id(
                    self._node, self.decide, lambda: self._refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                )
                return
            prepared = rules.prepare(current, state, self._version, new_id, self._node.now_ms)
            transactions.write(prepared)
        except CoordinatorError as error:
            self._refuse(error.code)
            return
        self._answer(transactions, rules.identity_after(prepared))

    def _answer(self, transactions: TransactionsState, producer: tuple[int, int]) -> None:
        transactions.shard.answer(
            self._request,
            _ended(ErrorCode.NONE, producer),
            failed=lambda error: _ended(commit_error(error)),
        )

    def _refuse(self, error: ErrorCode) -> None:
        told = fenced_error(error, knows_fencing=self._request.header.api_version >= 2)
        self._node.reply(self._request, _ended(told))


def _ended(error: ErrorCode, producer: tuple[int, int] = (-1, -1)) -> EndTxnResponse:
    return EndTxnResponse(
        throttle_time_ms=0, error_code=int(error), producer_id=producer[0], producer_epoch=producer[1]
    )
