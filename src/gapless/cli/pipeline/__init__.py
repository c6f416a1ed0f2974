"""`gapless pipeline`: new, check, run, markers, clean. One file each."""

from __future__ import annotations

from gapless.cli.group import examples, new_app
from gapless.cli.pipeline import check, clean, markers, new, run

app = new_app("Carry topics into sinks by Spark, each record once, as a definition file says.")
app.callback(epilog=examples("gapless pipeline new orders.toml", "gapless pipeline run orders.toml"))(
    lambda: None
)
app.command("new", epilog=new.EXAMPLES)(new.write_example)
app.command("check", epilog=check.EXAMPLES)(check.check_pipeline)
app.command("run", epilog=run.EXAMPLES)(run.run_pipeline)
app.command("markers", epilog=markers.EXAMPLES)(markers.show_markers)
app.command("clean", epilog=clean.EXAMPLES)(clean.clean_pipeline)
