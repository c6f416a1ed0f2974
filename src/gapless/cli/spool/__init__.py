"""`gapless spool`: status, verify, drain, recover. One file each."""

from __future__ import annotations

from gapless.cli.group import examples, new_app
from gapless.cli.spool import drain, recover, status, verify

app = new_app("Look at a producer's spool, check it, send what it holds, find its lost position again.")
app.callback(epilog=examples("gapless spool status ./spool", "gapless spool drain ./spool"))(lambda: None)
app.command("status", epilog=status.EXAMPLES)(status.show_status)
app.command("verify", epilog=verify.EXAMPLES)(verify.verify_spool)
app.command("drain", epilog=drain.EXAMPLES)(drain.drain)
app.command("recover", epilog=recover.EXAMPLES)(recover.recover_position)
