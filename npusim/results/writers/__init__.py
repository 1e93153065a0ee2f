"""Writers of reports and figures: text columns, web pages, plots and Perfetto traces."""
