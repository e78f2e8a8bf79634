module devcluster

go 1.26.0
