"""Start Spark without output on the user's terminal.

Spark's JVMs write to three places: their standard output and error (redirected to a file when the process is started),
log4j2 (configured by a file made here), and a progress bar (switched off in session_settings.py). The output is kept in
the bridge's temporary directory while the bridge runs; `SparkBridge.log_file` is the file to read when a start fails.
"""

from __future__ import annotations

from pathlib import Path

#: Only errors, and only into a file. RayDP passes this file's name to the JVMs of Ray as well; on another machine the
#: file does not exist, and those JVMs then write into Ray's own log directory.
_LOG4J2 = """\
status = off
rootLogger.level = error
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.append = true
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


def write_log_settings(directory: Path) -> tuple[Path, Path]:
    """Write the log4j2 settings into `directory`; return (settings file, log file)."""
    log_file = directory / "spark.log"
    settings = directory / "log4j2-quiet.properties"
    settings.write_text(_LOG4J2.format(file=log_file), encoding="utf-8")
    return settings, log_file


def log_tail(log_file: Path, count: int = 15) -> str:
    """Return the end of a log file for an error message.

    The text is empty if there is no file.
    """
    try:
        lines = log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-count:])
