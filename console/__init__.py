"""The web console: pages for people about a cluster, and the same as JSON.

It is a client of the cluster as any other: it works through `raymq.client` alone, also outside of Ray. The actor that
serves it with `console: true` is `raymq.cluster.console_actor`.

What is in it, in the order to read it:
    console_command: `raymq console`; console_server: serves it on an address; console_app: addresses, headers, rules.
    console_extra: whether its packages are installed.
    access_guard: whether a request is answered; token_file: the token for writes; sign_in_pages: the form for it.
    cluster_sampler: samples the cluster every five seconds; figure_history: the figures of the last hour.
    console_context: what all pages share; page_rendering: a page as HTML or JSON; error_pages: errors with a remedy.
    overview_page, topic_pages, group_pages, message_pages, dead_letter_pages, delayed_page, transaction_pages.
    message_listing: the messages of a topic's page; body_view: bodies as text; group_status: a group in a word.
    redrive_jobs: redrives in the background.
    svg_chart, cluster_charts: charts; form_fields, paging: what pages are asked with.
    event_streams: live figures and live tails; tail_window: what a live tail left out.
    templates, static: the pages' HTML, the style sheet, the script, and htmx.
"""
