-- Prepended to the scripts for readers of two_key.
--
-- KEYS[1]  the read key: a STRING. A program with the article's scripts overwrites it with 1. We
--          write a JSON object of our readers' tokens and their ends, in milliseconds since 1970 by
--          the server's clock. The empty token stands for the article's readers: its end is that of
--          the key when our first reader was added.
--
-- The article's scripts only check that the key exists, so our list does not disturb them. The key
-- ends with the last reader.

-- The server's clock in milliseconds, and the value of the read key. A key of another type stops
-- the script here.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local value = redis.call('GET', KEYS[1])

-- Returns the current readers by token, or nil if the value is not one of our lists. `pcall`
-- catches the error on a value that is not JSON. The article's `1` is JSON, but not a table. We
-- never write an empty table.
local function listed()
  local is_json, found = pcall(cjson.decode, value)
  if not is_json or type(found) ~= 'table' or not next(found) then
    return nil
  end
  -- Tokens and their ends. If one pair is of any other type, the list is not ours, and counts as an
  -- unknown reader. Written as `not (… < …)`, because that is also true for NaN.
  local readers = {}
  for token, ending in pairs(found) do
    if type(token) ~= 'string' or type(ending) ~= 'number' or not (ending < 9007199254740992) then
      return nil
    end
    -- A reader whose end has passed is omitted. A list of only such readers becomes empty, but is
    -- still ours.
    if ending >= now then
      readers[token] = ending
    end
  end
  return readers
end

-- Writes the list, or deletes the key if there is no reader. The key ends a millisecond after the
-- last reader, for the reason in `read_write/holders.lua`.
local function store(readers)
  local last = 0
  for _, ending in pairs(readers) do
    last = math.max(last, ending)
  end
  if last == 0 then
    redis.call('DEL', KEYS[1])
  else
    local left = string.format('%.0f', last - now + 1)
    redis.call('SET', KEYS[1], cjson.encode(readers), 'PX', left)
  end
end
