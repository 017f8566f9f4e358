return methods[ARGV[2]](unpack(ARGV, 3))
