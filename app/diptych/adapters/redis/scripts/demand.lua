#!lua flags=allow-oom
-- Notes what is asked of a run, once, and tells all processes.
-- ARGV: prefix, run, demand, message
local status = redis.call('HGET', key('run', ARGV[2]), 'status')
if not status then
  return 0
end
if status == 'queued' or status == 'running' then
  if not redis.call('LPOS', key('asked', ARGV[2]), ARGV[3]) then
    redis.call('RPUSH', key('asked', ARGV[2]), ARGV[3])
  end
  redis.call('PUBLISH', PREFIX .. ':control', ARGV[4])
end
return 1
