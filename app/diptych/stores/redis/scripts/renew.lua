#!lua flags=allow-oom
-- Renews leases, and gives the numbers of those that are lost. A session without unfinished runs is
-- skipped: its lease was released while this was on its way. The others' runs expire later.
-- ARGV: prefix, lease ms, retention ms, blob ms, (session, token) …
local retention_ms, now = tonumber(ARGV[3]), now_ms()
local MAX_RUNS = 1000 -- after which the next renewal goes on: nobody else is served meanwhile
local lost, runs = {}, 0
for i = 5, #ARGV, 2 do
  if refusal(ARGV[i], ARGV[i + 1]) then
    lost[#lost + 1] = (i - 5) / 2
  elseif redis.call('EXISTS', key('queue', ARGV[i])) == 1 then
    redis.call('SET', key('lease', ARGV[i]), ARGV[i + 1], 'PX', ARGV[2])
    if runs < MAX_RUNS then
      runs = runs + put_off_expiry(ARGV[i], retention_ms, ARGV[4], now)
    end
  end
end
return lost
