"""The coordinator of transactions, and how brokers that hold partitions work with it. Begin with `rules`."""

from gapless.core.coordinators import TRANSACTION_STATE, coordinates
from gapless.core.transactions.state import TransactionsState

coordinates(TRANSACTION_STATE, TransactionsState)
