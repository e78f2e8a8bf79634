module chartserver

go 1.26.0
